"""Worlds over HTTP, WebSocket and MCP, and the clients that make such servers worlds again."""
