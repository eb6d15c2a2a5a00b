"""One model over many processes: pipeline stages, sharded and replicated data parallelism, tensor parallelism."""
