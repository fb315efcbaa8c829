"""Which GPUs serve which of several models, and how are they split among them (LLMFabric §3.3)?"""
