package ibwire

import "embed"

// Name is the name of the kernel module.
const Name = "ibwire"

// Source holds the source of the kernel module, with its Kbuild file.
//
//go:embed ibwire.c Kbuild
var Source embed.FS
