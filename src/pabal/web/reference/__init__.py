"""The API reference, from the route table: OpenAPI, descriptions of fields, examples and pages."""
