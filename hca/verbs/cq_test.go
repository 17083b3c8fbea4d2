//go:build cgo && linux

package verbs

import (
	"testing"

	"ipoibd/hca"
)

// A CQ translates the completions of sends only. If receives of the same queue pair complete
// there too, even a failure, which does not contain the opcode, is that of the right queue.
func TestCQTranslates(t *testing.T) {
	shared, other := &CQ{}, &CQ{}
	both := &QP{num: 0x11, sendCQ: shared, recvCQ: shared}
	receives := &QP{num: 0x12, sendCQ: other, recvCQ: shared}
	for _, q := range []*QP{both, receives} {
		q.sender.book = newBook(4)
		q.sendCQ.attach(q)
	}
	number := both.sender.book.add(7, 1, true)
	both.sender.book.post()
	for _, tt := range []struct {
		name string
		wc   hca.WC
		want uint64
	}{
		{"receive", hca.WC{ID: 5, QPN: 0x11, Opcode: hca.WCRecv}, 5},
		{"failed receive", hca.WC{ID: 6, QPN: 0x11, Status: hca.WCWRFlushErr}, 6},
		{"receive of another queue pair", hca.WC{ID: number, QPN: 0x12, Opcode: hca.WCRecv}, number},
		{"failed send", hca.WC{ID: number, QPN: 0x11, Status: hca.WCWRFlushErr}, 7},
	} {
		if ok := shared.translate(&tt.wc); !ok || tt.wc.ID != tt.want {
			t.Errorf("%s: %v, ID %#x, want %#x", tt.name, ok, tt.wc.ID, tt.want)
		}
	}
	late := hca.WC{ID: number, QPN: 0x12}
	if other.translate(&late) {
		t.Error("a CQ of sends only passes on a number that is not posted")
	}
	shared.detach(both)
	if len(shared.senders) != 0 || len(other.senders) != 1 {
		t.Errorf("%d and %d senders, want 0 and 1", len(shared.senders), len(other.senders))
	}
}
