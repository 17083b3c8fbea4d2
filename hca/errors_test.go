package hca_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"ipoibd/hca"
)

func TestVerbError(t *testing.T) {
	var err error = &hca.VerbError{Verb: "modify_qp", On: "0x000011", Err: hca.ErrInvalid}
	if !errors.Is(err, hca.ErrInvalid) || errors.Is(err, hca.ErrIO) {
		t.Errorf("the error %v does not wrap its sentinel", err)
	}
	if got, want := err.Error(), "modify_qp 0x000011: invalid argument or state"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	err = &hca.VerbError{Verb: "query_port", Err: hca.ErrIO}
	if got, want := err.Error(), "query_port: device in error or gone"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestExhausted(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, hca.ErrNoMemory: false, syscall.ENOENT: false, syscall.EIO: false, syscall.ENODEV: false,
		syscall.EMFILE: true, syscall.ENOMEM: true, syscall.ENOBUFS: true,
		&fs.PathError{Op: "open", Path: "node_guid", Err: syscall.ENFILE}: true,
		fmt.Errorf("read: %w", syscall.EAGAIN):                            true,
	} {
		if got := hca.Exhausted(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
