"""Who may open which page: sign-in, cookies, forms, and the operator's own page."""
