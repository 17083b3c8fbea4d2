package verbs

import (
	"testing"

	"ipoibd/hca"
)

func TestAsyncEvent(t *testing.T) {
	for _, tt := range []struct {
		number uint32
		kind   hca.ObjectKind
	}{
		{0, hca.KindCQ}, {1, hca.KindQP}, {8, hca.KindDevice}, {9, hca.KindPort}, {10, hca.KindPort}, {18, hca.KindPort},
	} {
		want := hca.AsyncEvent{Type: hca.EventType(tt.number), On: hca.ObjectID{Kind: tt.kind, Num: 7, Generation: 9}}
		if got, ok := asyncEvent(tt.number, 7, 9); !ok || got != want {
			t.Errorf("%d: %+v, %v, want %+v", tt.number, got, ok, want)
		}
	}
}

// Events about objects that the backend never creates, and events added by later
// kernels, are ignored.
func TestAsyncEventUnknown(t *testing.T) {
	for _, n := range []uint32{
		uint32(hca.EventSRQErr), uint32(hca.EventSRQLimitReached), uint32(hca.EventWQFatal), uint32(hca.NumEventType), 256, 1<<32 - 1,
	} {
		if ev, ok := asyncEvent(n, 1, 1); ok {
			t.Errorf("event %d: %+v, want it ignored", n, ev)
		}
	}
	if len(kinds)+3 != int(hca.NumEventType) {
		t.Errorf("%d events of %d have a kind", len(kinds), hca.NumEventType)
	}
}
