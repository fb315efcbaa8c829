"""The OpenAI-compatible gateway: an HTTP front door that pays from its owner's wallet (`client serve`)."""
