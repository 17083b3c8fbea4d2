package verbs

import (
	"errors"
	"syscall"
	"testing"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

func TestSentinelOf(t *testing.T) {
	const any = "query_port"
	for _, tt := range []struct {
		verb  string
		errno syscall.Errno
		want  error
	}{
		{any, syscall.EINVAL, hca.ErrInvalid},
		{any, syscall.EPERM, hca.ErrInvalid},
		{any, syscall.EOPNOTSUPP, hca.ErrInvalid},
		{any, syscall.Errno(4095), hca.ErrInvalid},
		{any, syscall.EIO, hca.ErrIO},
		{any, syscall.ENODEV, hca.ErrIO},
		{any, syscall.ENXIO, hca.ErrIO},
		{any, syscall.ESHUTDOWN, hca.ErrIO},
		{any, syscall.EBUSY, hca.ErrBusy},
		{any, syscall.ETIMEDOUT, hca.ErrTimeout},
		{any, syscall.ENOMEM, hca.ErrNoMemory},
		{any, syscall.EMFILE, hca.ErrNoMemory},
		{any, syscall.EAGAIN, hca.ErrNoMemory},
		{verbPostSend, syscall.ENOMEM, hca.ErrQueueFull},
		{verbPostRecv, syscall.ENOMEM, hca.ErrQueueFull},
		{verbPostSend, syscall.EIO, hca.ErrIO},
		{verbCreateAH, syscall.ETIMEDOUT, hca.ErrTimeout},
		{verbCreateAH, syscall.EHOSTUNREACH, hca.ErrTimeout},
		{verbCreateAH, syscall.ENETUNREACH, hca.ErrInvalid}, // an error of the port, not of the device
		{verbCreateAH, syscall.ENODATA, hca.ErrInvalid},
		{verbCreateAH, syscall.ENODEV, hca.ErrInvalid}, // an error of the GID; the port decides whether the device is gone
		{verbCreateAH, syscall.EIO, hca.ErrIO},
		{any, syscall.EHOSTUNREACH, hca.ErrInvalid},
		{verbOpen, syscall.ENODEV, hca.ErrNoDevice},
		{verbOpen, syscall.ENOENT, hca.ErrNoDevice},
		{verbOpen, syscall.ENOSYS, hca.ErrNoDevice},
		{verbOpen, syscall.EIO, hca.ErrIO},
		{any, syscall.ENOENT, hca.ErrInvalid},
	} {
		if got := sentinelOf(tt.verb, tt.errno); got != tt.want { //nolint:errorlint // identity is wanted
			t.Errorf("%s, %v: %v, want %v", tt.verb, tt.errno, got, tt.want)
		}
	}
}

// TestR05Errnos checks the class of every pair of a verb and an errno. Only these errnos are
// errors of the device.
func TestR05Errnos(t *testing.T) {
	ofDevice := []syscall.Errno{syscall.EIO, syscall.ENODEV, syscall.ENXIO, syscall.ESHUTDOWN, syscall.ETIMEDOUT}
	for v := range qprecovery.NumVerb {
		want := map[syscall.Errno]bool{}
		for _, e := range ofDevice {
			// create_ah waits for a peer, and ENODEV from it is an error of the GID.
			want[e] = v != qprecovery.VerbCreateAH || e != syscall.ETIMEDOUT && e != syscall.ENODEV
		}
		if v == qprecovery.VerbOpenDevice {
			want[syscall.ENOENT], want[syscall.ENOSYS] = true, true
		}
		for errno := syscall.Errno(0); errno < 4096; errno++ {
			class := qprecovery.OfVerbError(v, failed(v.String(), "rxe0", errno))
			if class.OfDevice() != want[errno] {
				t.Errorf("%v, %v (%d): %v, want an error of the device: %v", v, errno, errno, class, want[errno])
			}
		}
	}
	for _, tt := range []struct {
		verb  qprecovery.Verb
		errno syscall.Errno
		want  qprecovery.Class
	}{
		{qprecovery.VerbPostSend, 0, qprecovery.ClassSuccess},
		{qprecovery.VerbPostSend, syscall.ENOMEM, qprecovery.ClassQueueFull},
		{qprecovery.VerbPostSend, syscall.EINVAL, qprecovery.ClassQPError},
		{qprecovery.VerbCreateAH, syscall.ETIMEDOUT, qprecovery.ClassSilentPeer},
		{qprecovery.VerbCreateAH, syscall.EHOSTUNREACH, qprecovery.ClassSilentPeer},
		{qprecovery.VerbCreateQP, syscall.ETIMEDOUT, qprecovery.ClassStuck},
		{qprecovery.VerbCreateCQ, syscall.EMFILE, qprecovery.ClassNoResource},
		{qprecovery.VerbDetachMcast, syscall.EINVAL, qprecovery.ClassSuccess},
	} {
		if got := qprecovery.OfVerbError(tt.verb, failed(tt.verb.String(), "rxe0", tt.errno)); got != tt.want {
			t.Errorf("%v, %v: %v, want %v", tt.verb, tt.errno, got, tt.want)
		}
	}
}

// The text of an error contains the verb, the sentinel and the errno.
func TestFailed(t *testing.T) {
	if err := failed(verbOpen, "rxe0", 0); err != nil {
		t.Errorf("error for success: %v", err)
	}
	err := failed(verbPostSend, "0x000011", syscall.ENOMEM)
	var named *hca.VerbError
	if !errors.Is(err, hca.ErrQueueFull) || !errors.Is(err, syscall.ENOMEM) || !errors.As(err, &named) {
		t.Errorf("error %v does not wrap the sentinel, the errno and a VerbError", err)
	}
	if got, want := err.Error(), "post_send 0x000011: work queue full: cannot allocate memory"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A provider that returns NULL and sets no errno is out of memory.
func TestFailedNull(t *testing.T) {
	for cause, want := range map[error]error{
		nil: hca.ErrNoMemory, syscall.Errno(0): hca.ErrNoMemory, syscall.EINVAL: hca.ErrInvalid,
	} {
		if err := failedNull("create_cq", "rxe0", cause); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", cause, err, want)
		}
	}
}
