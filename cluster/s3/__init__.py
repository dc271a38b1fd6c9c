"""Object stores that speak S3: buckets, objects and bytes. The only package that imports boto3; knows no shard."""
