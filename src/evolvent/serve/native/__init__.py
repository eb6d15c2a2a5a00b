"""The native dialect: leases, numbered steps, batches, one WebSocket for many sessions."""
