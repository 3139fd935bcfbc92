"""Macs and Thunderbolt: parse a Mac's survey, give cables their addresses."""
