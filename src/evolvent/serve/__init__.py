"""Worlds over HTTP, WebSocket and MCP, and clients that use such servers as worlds."""
