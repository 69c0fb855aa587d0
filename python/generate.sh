#!/usr/bin/env bash
# Writes kvfs/_proto anew from the protocol file. Needs grpcio-tools; 1.51 makes code that every protobuf from
# 3.20 on understands.
# usage: python/generate.sh
set -euo pipefail
cd "$(dirname "$0")"
out=kvfs/_proto
"${PYTHON:-python3}" -m grpc_tools.protoc -I ../crates/rpc/proto/kvfs/v1 \
  --python_out=$out --pyi_out=$out --grpc_python_out=$out store.proto
sed -i 's/^import store_pb2 as/from . import store_pb2 as/' $out/store_pb2_grpc.py
