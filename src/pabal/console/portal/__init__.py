"""The portal: what a bot's owner sees and does, let in by the token of their bot."""
