"""Five worlds of tools on generated data: weather, movie, academia, todo and sheet, with the tool names of AgentGym."""
