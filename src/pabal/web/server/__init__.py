"""The HTTP server: accepts connections and bounds what each may send and keep waiting."""
