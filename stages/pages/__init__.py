"""Pages for a browser that need nothing beside them: no network, no other file. Import nothing here."""
