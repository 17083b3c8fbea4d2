package conns

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// open returns a connection that b tracks as new, and its other end.
func open(t *testing.T, b *bound) (ours, theirs net.Conn) {
	t.Helper()
	ours, theirs = net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	b.track(ours, http.StateNew)
	return ours, theirs
}

// closed reports whether the other end of a connection was closed.
func closed(t *testing.T, theirs net.Conn) bool {
	t.Helper()
	err := theirs.SetReadDeadline(time.Now())
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	return err != nil
}

// The oldest connection makes room for a new one. Those that have ended or are kept neither
// count nor are closed.
func TestTheOldestMakesRoom(t *testing.T) {
	b := &bound{max: 2}
	kept, keptEnd := open(t, b)
	ended, _ := open(t, b)
	b.Keep(kept)
	b.track(ended, http.StateActive)
	b.track(ended, http.StateClosed)
	_, first := open(t, b)
	_, second := open(t, b)
	if closed(t, keptEnd) || closed(t, first) || closed(t, second) {
		t.Fatal("a connection was closed below the limit")
	}
	_, third := open(t, b)
	if !closed(t, first) {
		t.Error("the oldest is still open")
	}
	if closed(t, keptEnd) || closed(t, second) || closed(t, third) {
		t.Error("another one was closed")
	}
}
