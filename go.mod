module github.com/weir-ratelimit/weir

go 1.26
