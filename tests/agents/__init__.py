"""Agents as other people write them, each in an environment of its own (`make agents`).

Each program here is run with the address of a gateway, a key and a model that says what it is told
to, and must finish a task of two functions: `test_agents` runs all whose environment is there.
"""
