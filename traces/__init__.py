"""Request traces and length estimates: schema, readers and arrivals."""
