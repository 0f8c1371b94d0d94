// Command etcd is etcd, built from its module: its own module cannot be installed by version.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
