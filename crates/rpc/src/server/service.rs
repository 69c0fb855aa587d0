//! The calls of the protocol, one by one: unpack, do, pack.

use std::sync::Arc;

use prost::Message;
use tonic::{Request, Response, Status};

use super::Shared;
use super::body::AnswerHold;
use super::call::Call;
use super::failure::Failure;
use super::peer::Peer;
use super::scan::Pages;
use crate::proto::operation::Change;
use crate::proto::store_server::Store;
use crate::proto::{
    AbortRequest, AbortResponse, ApplyRequest, BeginRequest, BeginResponse, ChangeKeyspaceRequest,
    CommitRequest, CommitResponse, CreateKeyspaceRequest, DeleteRangeRequest, DeleteRequest, DeleteResponse,
    DropKeyspaceRequest, DropKeyspaceResponse, GetRequest, GetResponse, InfoRequest, InfoResponse, KeyValue,
    KeyspaceInfo, ListKeyspacesRequest, ListKeyspacesResponse, ListTransactionsRequest,
    ListTransactionsResponse, LockRequest, LockResponse, MultiGetRequest, MultiGetResponse, Operation,
    PutRequest, ScanRequest, ViewRequest, ViewResponse, WriteResponse,
};

type Answer<T> = Result<Response<T>, Status>;

/// See the module.
#[derive(Clone)]
pub(super) struct Service(pub(super) Arc<Shared>);

impl Service {
    /// Something about keyspaces, which never waits for others.
    async fn about_keyspaces<T: Message + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&Shared, &Peer) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<T> {
        match self.0.run(call, work).await? {
            Ok(done) => held(call, done.encoded_len(), done),
            Err(Failure::Status(status)) => Err(status),
            Err(Failure::Parked(_)) => Err(Status::internal("a lock was in the way of a keyspace")),
        }
    }
}

/// An answer that counts until it is taken.
fn held<T>(call: &Call, bytes: usize, answer: T) -> Answer<T> {
    Ok(kept(call.hold(bytes)?, answer))
}

/// An answer with what is kept until it is taken.
fn kept<T>(hold: AnswerHold, answer: T) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(hold);
    response
}

#[tonic::async_trait]
impl Store for Service {
    type ScanStream = Pages;

    async fn info(&self, _: Request<InfoRequest>) -> Answer<InfoResponse> {
        let mount = self.0.options.mount.to_string_lossy().into_owned();
        Ok(Response::new(InfoResponse { version: env!("CARGO_PKG_VERSION").to_owned(), mount }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        call.report.about(&request.keyspace, &request.key, request.txn);
        let value = self.0.get(&call, request).await?;
        let bytes = value.as_ref().map_or(0, bytes::Bytes::len);
        call.report.moved(bytes);
        held(&call, bytes, GetResponse { value })
    }

    async fn multi_get(&self, request: Request<MultiGetRequest>) -> Answer<MultiGetResponse> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        call.report.about(&request.keyspace, &bytes::Bytes::new(), request.txn);
        let values = self.0.multi_get(&call, request).await?;
        let bytes = values.iter().filter_map(|value| value.value.as_ref()).map(bytes::Bytes::len).sum();
        call.report.moved(bytes);
        held(&call, bytes, MultiGetResponse { values })
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<WriteResponse> {
        let call = Call::of(&request)?;
        let PutRequest { keyspace, key, value, txn, durability } = request.into_inner();
        call.report.about(&keyspace, &key, txn);
        call.report.moved(value.len());
        let change = Some(Change::Put(KeyValue { key, value }));
        self.0.apply(&call, vec![Operation { keyspace, change }], txn, durability).await?;
        Ok(Response::new(WriteResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        call.report.about(&request.keyspace, &request.key, request.txn);
        let existed = self.0.delete(&call, request).await?;
        Ok(Response::new(DeleteResponse { existed }))
    }

    async fn delete_range(&self, request: Request<DeleteRangeRequest>) -> Answer<WriteResponse> {
        let call = Call::of(&request)?;
        let DeleteRangeRequest { keyspace, range, txn, durability } = request.into_inner();
        call.report.about(&keyspace, &bytes::Bytes::new(), txn);
        let change = Some(Change::DeleteRange(range.unwrap_or_default()));
        self.0.apply(&call, vec![Operation { keyspace, change }], txn, durability).await?;
        Ok(Response::new(WriteResponse {}))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Answer<WriteResponse> {
        let call = Call::of(&request)?;
        let ApplyRequest { operations, txn, durability } = request.into_inner();
        if let Some(first) = operations.first() {
            call.report.about(&first.keyspace, &bytes::Bytes::new(), txn);
        }
        self.0.apply(&call, operations, txn, durability).await?;
        Ok(Response::new(WriteResponse {}))
    }

    async fn scan(&self, request: Request<ScanRequest>) -> Answer<Pages> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        call.report.about(&request.keyspace, &request.prefix, request.txn);
        let (pages, hold) = self.0.scan(call, request).await?;
        Ok(kept(hold, pages))
    }

    async fn list_keyspaces(&self, request: Request<ListKeyspacesRequest>) -> Answer<ListKeyspacesResponse> {
        let call = Call::of(&request)?;
        let snapshot = request.into_inner().snapshot;
        self.about_keyspaces(&call, move |shared, peer| {
            Ok(ListKeyspacesResponse { keyspaces: shared.list_keyspaces(peer, &snapshot)? })
        })
        .await
    }

    async fn create_keyspace(&self, request: Request<CreateKeyspaceRequest>) -> Answer<KeyspaceInfo> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        self.about_keyspaces(&call, move |shared, peer| shared.create_keyspace(peer, &request)).await
    }

    async fn change_keyspace(&self, request: Request<ChangeKeyspaceRequest>) -> Answer<KeyspaceInfo> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        self.about_keyspaces(&call, move |shared, peer| shared.change_keyspace(peer, &request)).await
    }

    async fn drop_keyspace(&self, request: Request<DropKeyspaceRequest>) -> Answer<DropKeyspaceResponse> {
        let call = Call::of(&request)?;
        self.0.drop_keyspace(&call, request.into_inner().name).await?;
        Ok(Response::new(DropKeyspaceResponse {}))
    }

    async fn begin(&self, request: Request<BeginRequest>) -> Answer<BeginResponse> {
        let call = Call::of(&request)?;
        Ok(Response::new(self.0.begin(&call, request.into_inner()).await?))
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Answer<CommitResponse> {
        let call = Call::of(&request)?;
        self.0.commit(&call, request.into_inner()).await?;
        Ok(Response::new(CommitResponse {}))
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Answer<AbortResponse> {
        let call = Call::of(&request)?;
        Ok(Response::new(self.0.abort(&call, request.into_inner().txn).await?))
    }

    async fn view(&self, request: Request<ViewRequest>) -> Answer<ViewResponse> {
        let call = Call::of(&request)?;
        Ok(Response::new(self.0.path_of(&call, request.into_inner().txn).await?))
    }

    async fn lock(&self, request: Request<LockRequest>) -> Answer<LockResponse> {
        let call = Call::of(&request)?;
        self.0.lock(&call, request.into_inner()).await?;
        Ok(Response::new(LockResponse {}))
    }

    async fn list_transactions(
        &self,
        request: Request<ListTransactionsRequest>,
    ) -> Answer<ListTransactionsResponse> {
        let call = Call::of(&request)?;
        let listed = self.0.list_transactions(&call).await?;
        held(&call, listed.encoded_len(), listed)
    }
}
