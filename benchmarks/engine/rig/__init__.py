"""Two real stages in processes of their own, their clients, the links between them, and the peer they are compared with."""
