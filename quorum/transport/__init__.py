"""The quorum's messages on the wire: checked conversion (`convert`) and gRPC (`grpc`)."""
