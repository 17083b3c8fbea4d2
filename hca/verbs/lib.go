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

// load opens libibverbs, once. It is not linked, so that the program starts
// where it is not installed.
var load = sync.OnceValue(func() error {
	if why := C.shim_load(); why != nil {
		return noLibrary(C.GoString(why))
	}
	return nil
})

func noLibrary(why string) error {
	return fmt.Errorf("%w: libibverbs.so.1 cannot be used (%s): install Debian's packages libibverbs1 and ibverbs-providers",
		hca.ErrNoDevice, why)
}

// errno is the type of what the shim returns.
func errno(code C.int) syscall.Errno { return syscall.Errno(code) }
