"""What a release is made of: what is locked, under which licences, the wheel's list of parts, the files to hand out."""
