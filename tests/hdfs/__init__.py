"""What HDFS does when its nodes or the lines to them fail."""
