"""Numbers derived from records: the frame, statistics, comparison, models.  Pure: nothing here measures or prints."""
