"""OpenAI's APIs: chat and plain completions, embeddings, the small routes; Responses inside."""
