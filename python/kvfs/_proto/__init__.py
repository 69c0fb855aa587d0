"""Messages and stubs, generated from the protocol file by python/generate.sh."""
