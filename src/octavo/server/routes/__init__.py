"""Routes, by what they are about; each module makes a router of a server's parts."""
