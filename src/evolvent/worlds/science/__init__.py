"""A science lab: experiments in a house of ten rooms, with the action grammar of ScienceWorld."""
