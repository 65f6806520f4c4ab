"""What a user declares: YAML files as frozen pydantic models, loaded and cross-checked. Knows no stage."""
