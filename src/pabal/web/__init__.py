"""What the API and the console share: routes, requests, errors, authentication, OpenAPI and the server."""
