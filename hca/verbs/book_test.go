package verbs

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// wc returns the completion of a request.
func wc(number uint64, status hca.WCStatus) hca.WC { return hca.WC{ID: number, Status: status} }

// completed returns the IDs of the sends that the caller sees complete.
func completed(b *book, wcs ...hca.WC) (ids []uint64) {
	for i := range wcs {
		if b.complete(&wcs[i]) {
			ids = append(ids, wcs[i].ID)
		}
	}
	return ids
}

func TestBookOneCompletionPerSend(t *testing.T) {
	for _, tt := range []struct {
		name    string
		reports bool
		wcs     func(first uint64) []hca.WC // of a send of 47 requests, and of one of 1
		want    []uint64
	}{
		{"last one", true, func(f uint64) []hca.WC { return []hca.WC{wc(f+46, 0), wc(f+47, 0)} }, []uint64{7, 8}},
		{"last one, not requested", false, func(f uint64) []hca.WC { return []hca.WC{wc(f+46, 0)} }, nil},
		{"every one", true, func(f uint64) (all []hca.WC) {
			for i := range uint64(47) {
				all = append(all, wc(f+i, 0))
			}
			return all
		}, []uint64{7}},
		{"the third fails", false, func(f uint64) []hca.WC {
			return []hca.WC{wc(f+2, hca.WCLocProtErr), wc(f+3, hca.WCWRFlushErr), wc(f+46, hca.WCWRFlushErr), wc(f+47, hca.WCWRFlushErr)}
		}, []uint64{7, 8}},
		{"only the last fails", true, func(f uint64) []hca.WC { return []hca.WC{wc(f+46, hca.WCLocProtErr)} }, []uint64{7}},
		{"a late one", true, func(f uint64) []hca.WC {
			return []hca.WC{wc(f+47, 0), wc(f+46, 0), wc(f+47, 0), wc(f+48, 0), wc(f-1, 0)}
		}, []uint64{8}},
	} {
		b := newBook(64)
		first := b.add(7, 47, tt.reports)
		b.add(8, 1, tt.reports)
		b.post()
		if got := completed(b, tt.wcs(first)...); !slices.Equal(got, tt.want) {
			t.Errorf("%s: completions of %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The device's refusal of the last requests takes back whole sends. A send whose first
// requests it accepted has a rest.
func TestBookTakeBack(t *testing.T) {
	for refused, want := range map[int]struct{ rest, sends, room int }{
		0: {0, 0, 5},
		1: {0, 1, 6},
		2: {1, 1, 6},
		3: {2, 1, 6},
		4: {0, 2, 9},
		5: {0, 3, 10},
	} {
		b := newBook(16)
		b.add(1, 6, true)
		b.post()
		b.add(2, 1, true)
		b.add(3, 3, true)
		b.add(4, 1, true)
		b.post()
		rest := b.rest(refused)
		if got := b.takeBack(refused - rest); rest != want.rest || got != want.sends || b.room() != want.room {
			t.Errorf("%d requests: a rest of %d, %d sends and room for %d, want %+v", refused, rest, got, b.room(), want)
		}
	}
}

// device is a model of a send queue: it executes requests in order, and after a failure it
// flushes the others.
type device struct {
	queue  []request
	failed bool
}

type request struct {
	number   uint64
	signaled bool
}

// execute executes the oldest n requests and returns their completions.
func (d *device) execute(n int, fails bool) (wcs []hca.WC) {
	for _, r := range d.queue[:n] {
		switch {
		case d.failed:
			wcs = append(wcs, wc(r.number, hca.WCWRFlushErr))
		case fails:
			wcs = append(wcs, wc(r.number, hca.WCLocProtErr))
			d.failed = true
		case r.signaled:
			wcs = append(wcs, wc(r.number, hca.WCSuccess))
		}
	}
	d.queue = d.queue[n:]
	return wcs
}

// Whatever the device executes, refuses and fails, each accepted send ends once, in order: by
// its completion if it fails or was to report, else by that of a later send. The room for all
// requests returns.
func TestBookModel(t *testing.T) {
	const depth = 24
	rapid.Check(t, func(t *rapid.T) {
		b, d := newBook(depth), &device{}
		var open []uint64 // IDs of the sends that have not ended
		silent := map[uint64]bool{}
		id := uint64(0)
		post := func(t *rapid.T) {
			var batch []request
			var ids []uint64
			for range rapid.IntRange(1, 4).Draw(t, "sends") {
				n, reports := rapid.IntRange(1, 7).Draw(t, "requests"), rapid.Bool().Draw(t, "reports")
				if n > b.room() {
					break
				}
				id++
				first := b.add(id, n, reports)
				ids, silent[id] = append(ids, id), !reports
				for i := range uint64(n) {
					batch = append(batch, request{first + i, i == uint64(n)-1 && (n > 1 || reports)})
				}
			}
			if len(batch) == 0 {
				return
			}
			b.post()
			refused := 0
			if rapid.IntRange(0, 4).Draw(t, "refuses") == 0 {
				refused = rapid.IntRange(1, len(batch)).Draw(t, "refused")
			}
			rest := b.rest(refused)
			d.queue = append(d.queue, batch[:len(batch)-refused]...)
			if refused -= rest; rest > 0 { // the last request of the send is posted by itself
				d.queue = append(d.queue, batch[len(batch)-refused-1])
			}
			open = append(open, ids[:len(ids)-b.takeBack(refused)]...)
		}
		execute := func(t *rapid.T) {
			wcs := d.execute(rapid.IntRange(0, len(d.queue)).Draw(t, "executed"), rapid.IntRange(0, 9).Draw(t, "fails") == 0)
			for i := range wcs {
				if !b.complete(&wcs[i]) {
					continue
				}
				at := slices.Index(open, wcs[i].ID)
				if at < 0 {
					t.Fatalf("completion of send %d, which is not open", wcs[i].ID)
				}
				if wcs[i].Status == hca.WCSuccess && silent[wcs[i].ID] {
					t.Fatalf("send %d completed, although it was not to report", wcs[i].ID)
				}
				open = open[at+1:]
			}
		}
		t.Repeat(map[string]func(*rapid.T){"post": post, "execute": execute})
		for _, w := range d.execute(len(d.queue), false) {
			b.complete(&w)
		}
		last := b.add(id+1, 1, true)
		b.post()
		if w := wc(last, 0); !b.complete(&w) || w.ID != id+1 || b.room() != depth {
			t.Fatalf("after all sends there is room for %d of %d; %+v", b.room(), depth, w)
		}
	})
}

// RESET empties the queue: a completion that comes later is not one of the sends after it.
func TestBookDrop(t *testing.T) {
	b := newBook(4)
	first := b.add(1, 3, true)
	b.post()
	b.drop()
	if b.room() != 4 {
		t.Errorf("room for %d of 4", b.room())
	}
	next := b.add(2, 4, true)
	b.post()
	if got := completed(b, wc(first+2, 0), wc(next+3, 0)); !slices.Equal(got, []uint64{2}) {
		t.Errorf("completions of %d, want one of the send after the reset", got)
	}
}

// A queue of any depth has a place for each request in it.
func TestBookPlaces(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 16, 17, 512} {
		b, seen := newBook(depth), map[int]bool{}
		first := b.add(1, depth, true)
		for i := range uint64(depth) {
			seen[b.place(first+i)] = true
		}
		if len(seen) != depth || b.room() != 0 {
			t.Errorf("%d places for %d requests, room for %d more", len(seen), depth, b.room())
		}
	}
}
