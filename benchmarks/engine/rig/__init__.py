"""Two real stages in processes of their own, with clients and links, and `generate` beside them."""
