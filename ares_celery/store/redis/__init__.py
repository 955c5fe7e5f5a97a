"""The production store: one Lua file an operation, a typed call for each."""
