package softqp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// A large send becomes one train: equal packets, and a shorter last one.
func TestLargeSendIsOneTrain(t *testing.T) {
	r := rtsRig(t)
	r.limits = Limits{64, 65507}
	r.sendLarge(1, 5000, 1000)
	r.sendLarge(2, 2500, 1000)
	b := r.fill()
	var got []string
	for i := range b.Trains() {
		d := &b.Trains()[i]
		parseTrain(t, r.env, d)
		got = append(got, fmt.Sprintf("%d of %d, %d in all", d.Segs, d.SegSize, len(d.Data)))
	}
	// 24 bytes of headers and ICRC, 44 of the frame's headers.
	want := []string{"8 of 1068, 8044 in all"}
	if !slices.Equal(got, want) {
		t.Errorf("trains %q, want %q", got, want)
	}
	r.Finish(b, 1)
	r.wantSent(outcome{1, hca.WCSuccess}, outcome{2, hca.WCSuccess})
}

// Sends of equal size to one destination form a train, and whatever differs ends it.
func TestSmallSendsFormTrains(t *testing.T) {
	other := netip.MustParseAddr("10.0.0.3")
	type send struct {
		to netip.Addr
		n  int
	}
	for _, c := range []struct {
		limits Limits
		sends  []send
		want   []int
	}{
		{Limits{}, []send{{peer4, 40}, {peer4, 40}}, []int{1, 1}},
		{Limits{1, 9999}, []send{{peer4, 40}, {peer4, 40}}, []int{1, 1}},
		{Limits{64, 9999}, []send{{peer4, 40}, {peer4, 38}, {peer4, 40}}, []int{3}}, // the padding makes them equal
		{Limits{64, 9999}, []send{{peer4, 40}, {peer4, 40}, {peer4, 36}, {peer4, 36}}, []int{3, 1}},
		{Limits{64, 9999}, []send{{peer4, 40}, {peer4, 44}, {peer4, 44}}, []int{1, 2}},
		{Limits{2, 9999}, []send{{peer4, 40}, {peer4, 40}, {peer4, 40}}, []int{2, 1}},
		{Limits{64, 128}, []send{{peer4, 40}, {peer4, 40}, {peer4, 40}}, []int{2, 1}},
		{Limits{64, 127}, []send{{peer4, 40}, {peer4, 40}, {peer4, 40}}, []int{1, 1, 1}},
		{Limits{64, 9999}, []send{{peer4, 40}, {other, 40}, {peer4, 40}}, []int{1, 1, 1}},
		{Limits{64, 9999}, []send{{peer6, 40}, {peer6, 40}, {peer4, 40}}, []int{2, 1}},
	} {
		r := rtsRig(t)
		r.limits = c.limits
		for i, s := range c.sends {
			r.send(uint64(i), s.to, s.n)
		}
		var got []int
		for _, d := range r.fill().Trains() {
			parseTrain(t, r.env, &d)
			got = append(got, d.Segs)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v, %v: trains of %v, want %v", c.limits, c.sends, got, c.want)
		}
	}
}

// Messages to two QPs of one address are separate trains, because two devices may share the
// address, and the kernel gives each train to one of them.
func TestTrainHasOneQP(t *testing.T) {
	r := rtsRig(t)
	r.limits = Limits{64, 9999}
	for i, qpn := range []hca.QPN{5, 5, 6, 6, 6, 5} {
		wr := hca.SendWR{ID: uint64(i), SGList: []hca.SGE{r.txSGE(0, 40)}, UD: hca.UDDest{QPN: qpn, QKey: 0x0b1c}}
		if err := r.PostSend(&wr, ahTo(peer4)); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for _, d := range r.fill().Trains() {
		for _, u := range parseTrain(t, r.env, &d) {
			if u.DestQPN != d.qpn {
				t.Errorf("QPN %v in a train for %v", u.DestQPN, d.qpn)
			}
		}
		got = append(got, d.Segs)
	}
	if want := []int{2, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("trains of %v, want %v", got, want)
	}
}

// Batches end where trains do: a large send is divided over two only behind a full train, whose
// successor the next batch fills.
func TestBatchesEndBetweenTrains(t *testing.T) {
	for _, c := range []struct {
		what              string
		sends, bytes, mss int
		limits            Limits
		want              string // trains, batch by batch
	}{
		{"shorter last segments", 3, 29500, 1000, Limits{64, 65507}, "[30 30] [30]"},
		{"equal segments", 3, 30000, 1000, Limits{64, 65507}, "[61] [29]"},
		{"frames of one segment more than a train", 4, 32000, 1000, Limits{64, 31 * 1068}, "[31 31] [31 31] [4]"},
		{"as many as a train", 3, 31000, 1000, Limits{64, 31 * 1068}, "[31 31] [31]"},
		{"one less than a train", 3, 30000, 1000, Limits{64, 31 * 1068}, "[31 31] [28]"},
		{"frames of many trains", 2, 30000, 150, Limits{64, 65507}, "[64] [64] [64] [64] [64] [64] [16]"},
		{"no trains", 3, 30000, 1000, Limits{1, 65507}, "[" + strings.TrimSpace(strings.Repeat("1 ", 64)) + "] [" + strings.TrimSpace(strings.Repeat("1 ", 26)) + "]"},
		{"one frame", 1, 30000, 667, Limits{64, 31 * 736}, "[31 14]"},
	} {
		r := rtsRig(t)
		r.limits = c.limits
		for i := range c.sends {
			r.sendLarge(uint64(i), c.bytes, c.mss)
		}
		var got []string
		for r.waiting() > 0 {
			b := r.fill()
			var segs []int
			for _, train := range b.Trains() {
				segs = append(segs, train.Segs)
			}
			got = append(got, fmt.Sprint(segs))
			r.Finish(b, len(b.Trains()))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: trains of %v, want %v", c.what, got, c.want)
		}
	}
}

// A large send of any number of segments around the bounds of a train becomes as few trains as
// possible, each within the bounds.
func TestTrainsAtEveryBound(t *testing.T) {
	const size, packet = 100, 168 // of a segment's payload and of its packet
	for _, limits := range []Limits{{64, 65507}, {64, 31 * packet}, {64, 32*packet - 1}, {2, 65507}} {
		most := min(limits.MaxSegs, limits.MaxBytes/packet)
		for _, n := range []int{1, 2, most - 1, most, most + 1, 2*most - 1, 2 * most, 2*most + 1, 5*most + 1} {
			for _, short := range []int{0, 1, size - 1} { // bytes that the last segment lacks
				r := rtsRig(t)
				r.limits = limits
				r.sendLarge(1, n*size-short, size)
				trains, segs := 0, 0
				for r.waiting() > 0 {
					b := r.fill()
					for i := range b.Trains() {
						d := &b.Trains()[i]
						parseTrain(t, r.env, d)
						if d.Segs > limits.MaxSegs || len(d.Data) > limits.MaxBytes {
							t.Errorf("%+v, %d segments: a train of %d with %d bytes", limits, n, d.Segs, len(d.Data))
						}
						trains, segs = trains+1, segs+d.Segs
					}
					r.Finish(b, len(b.Trains()))
				}
				if want := (n + most - 1) / most; trains > want || trains < want && short == 0 || segs != n {
					t.Errorf("%+v, %d segments, the last %d bytes shorter: %d trains of %d segments, want %d", limits, n, short, trains, segs, want)
				}
			}
		}
	}
}

// sent is a packet, or a looped-back message, as its receivers see it.
type sent struct {
	dst     netip.Addr
	psn     uint32
	message string
}

// sendAll sends until the queue is empty. accept returns how many of n trains the transport
// takes.
func (r *rig) sendAll(peers []netip.Addr, accept func(n int) int) (out []sent) {
	for r.waiting() > 0 {
		b := r.fill(peers...)
		n := accept(len(b.Trains()))
		for i := range n {
			d := &b.Trains()[i]
			for _, u := range parseTrain(r, r.env, d) {
				out = append(out, sent{d.Dst, u.PSN, string(u.Payload)})
			}
			if d.Segs > max(1, r.limits.MaxSegs) || d.Segs > 1 && len(d.Data) > r.limits.MaxBytes {
				r.Fatalf("train %+v exceeds %+v", d, r.limits)
			}
		}
		if b.Tail == TailLoop && n == len(b.Trains()) {
			if l := &b.Loop; len(bytes.Join(l.Payload, nil)) != l.Len {
				r.Fatalf("loop of %d bytes has %x", l.Len, l.Payload)
			}
			out = append(out, sent{dst: own4, message: string(bytes.Join(b.Loop.Payload, nil))})
		}
		r.Finish(b, n)
	}
	return out
}

// Trains, limits and a transport that takes only some of them change neither the packets nor
// their order, PSNs and completions. This holds for every mixture of large and other sends,
// unicast, multicast, replicated multicast and messages to this port.
func TestTrainsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicate := rapid.Bool().Draw(t, "replicate")
		var peers []netip.Addr
		for i := range rapid.IntRange(0, 5).Draw(t, "peers") {
			peers = append(peers, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
		}
		type request struct {
			to       netip.Addr
			large    bool
			csum     bool
			n, mss   int
			signaled bool
		}
		requests := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) request {
			return request{
				to:    rapid.SampledFrom([]netip.Addr{peer4, peer4, peer4, peer6, own4, group}).Draw(t, "to"),
				large: rapid.Bool().Draw(t, "large"), csum: rapid.Bool().Draw(t, "checksum"),
				n: rapid.IntRange(0, 1400).Draw(t, "bytes"), mss: rapid.IntRange(9, 1000).Draw(t, "MSS"),
				signaled: rapid.Bool().Draw(t, "signaled"),
			}
		}), 1, 8).Draw(t, "requests")
		run := func(limits Limits, accept func(int) int) ([]sent, []outcome) {
			spec := defaultSpec()
			spec.SignalAll = false
			r := newRig(&fatal{TB: nil, t: t}, spec)
			r.up(hca.QPRTS)
			r.env.Replicate, r.limits = replicate, limits
			copy(r.tx, tcpHeader)
			for i, q := range requests {
				wr := hca.SendWR{ID: uint64(i), SGList: []hca.SGE{r.txSGE(0, q.n/3), r.txSGE(q.n/3, q.n-q.n/3)}, UD: hca.UDDest{QPN: 1, QKey: 2}}
				if q.large {
					wr.LSO = hca.LSO{Header: tcpHeader, MSS: q.mss}
				}
				if q.csum {
					wr.Flags |= hca.SendIPCsum
				}
				if q.signaled {
					wr.Flags |= hca.SendSignaled
				}
				if err := r.PostSend(&wr, ahTo(q.to)); err != nil {
					t.Fatal(err)
				}
			}
			return r.sendAll(peers, accept), outcomes(r.SendDone())
		}
		limits := Limits{rapid.IntRange(0, 64).Draw(t, "datagrams"), rapid.IntRange(0, 65507).Draw(t, "bytes of a train")}
		want, done := run(Limits{}, func(n int) int { return n })
		got, doneToo := run(limits, func(n int) int { return rapid.IntRange(0, n).Draw(t, "accepted") })
		if !slices.Equal(got, want) || !slices.Equal(done, doneToo) {
			t.Fatalf("%d packets, completions %v, want %d, %v\n%v\n%v", len(got), doneToo, len(want), done, got, want)
		}
	})
}

// fatal is a testing.TB of which the rig uses only the methods of rapid.T.
type fatal struct {
	testing.TB
	t *rapid.T
}

func (f *fatal) Helper()                           { f.t.Helper() }
func (f *fatal) Fatal(args ...any)                 { f.t.Fatal(args...) }
func (f *fatal) Fatalf(format string, args ...any) { f.t.Fatalf(format, args...) }
