//go:build cgo && linux

package verbs

// #cgo LDFLAGS: -ldl
// #cgo noescape shim_arm_cq
// #cgo nocallback shim_arm_cq
// #cgo noescape shim_poll_cq
// #cgo nocallback shim_poll_cq
// #cgo noescape shim_cq_event
// #cgo nocallback shim_cq_event
// #cgo noescape shim_post_send
// #cgo nocallback shim_post_send
// #cgo noescape shim_post_recv
// #cgo nocallback shim_post_recv
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"

	"ipoibd/hca"
)

// load loads libibverbs once. The library is not linked, so that the program starts on hosts
// without it.
var load = sync.OnceValue(func() error {
	if why := C.shim_load(); why != nil {
		return fmt.Errorf("%w: cannot use libibverbs.so.1 (%s): "+
			"install Debian's packages libibverbs1 and ibverbs-providers", hca.ErrNoDevice, C.GoString(why))
	}
	return nil
})

// errno converts a return value of the shim.
func errno(code C.int) syscall.Errno { return syscall.Errno(code) }
