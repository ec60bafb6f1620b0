"""A chat request's bytes -> a typed, validated, canonical request, or a 400.

Pure: no tokenizer, no model, no server. Standard library only.
"""
