"""The dialect of our own: leases, numbered steps, batches, one WebSocket for many sessions."""
