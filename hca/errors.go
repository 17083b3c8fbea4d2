package hca

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Sentinel errors of the contract. A backend wraps them with %w, usually in a
// [VerbError]; callers use errors.Is.
var (
	ErrInvalid   = errors.New("invalid argument or state") // EINVAL
	ErrQueueFull = errors.New("work queue full")           // ENOMEM of a post
	ErrNoMemory  = errors.New("out of resources")          // ENOMEM elsewhere
	ErrBusy      = errors.New("object in use")             // EBUSY
	ErrTimeout   = errors.New("timed out")                 // ETIMEDOUT: the peer does not answer
	ErrCQ        = errors.New("completion queue in error") // overrun, CQ_ERR
	ErrIO        = errors.New("device in error or gone")   // EIO, ENODEV
	ErrClosed    = errors.New("closed")                    // this handle was closed
	ErrNoDevice  = errors.New("no such device")            // at opening
	ErrRange     = errors.New("exceeds the device limits") // a spec above DeviceAttr
)

// ErrStuck means that a verb did not return in time; its goroutine is abandoned. It does not
// wrap [ErrTimeout], which means that a peer does not answer.
var ErrStuck = fmt.Errorf("%w: verb did not return", ErrIO)

// VerbError says which verb failed, and on which object. It wraps a sentinel.
type VerbError struct {
	Verb string // as in libibverbs, without the prefix: "modify_qp"
	On   string // the object, for the message; may be empty
	Err  error
}

func (e *VerbError) Error() string {
	if e.On == "" {
		return fmt.Sprintf("%s: %v", e.Verb, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Verb, e.On, e.Err)
}

func (e *VerbError) Unwrap() error { return e.Err }

// exhaustion are the errnos of a process or machine that has run out of a resource.
var exhaustion = []syscall.Errno{
	syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.EDQUOT, syscall.EAGAIN,
}

// Exhausted reports whether err says that this process or machine has run out of a
// resource, such as descriptors. Such an error says nothing about a device: a file that
// could not be read may exist. A backend returns it as [ErrNoMemory], unless the errno
// has a special meaning for the verb.
func Exhausted(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(exhaustion, errno)
}
