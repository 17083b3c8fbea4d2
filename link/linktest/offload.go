package linktest

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"ipoibd/link"
)

func writesVectors(t *testing.T, r *rig) {
	r.running()
	var out [][][]byte
	var want [][]byte
	for i, cuts := range [][]int{
		{},
		{link.HeaderLen},
		{3, link.HeaderLen, link.HeaderLen + 14, 1000},
		{24, 24, 24},
		{0, link.HeaderLen + 1514},
	} {
		f := frame(i, 1514)
		var parts [][]byte
		whole, begin := withHeader(f), 0
		for _, cut := range append(cuts, len(whole)) {
			parts = append(parts, whole[begin:cut])
			begin = cut
		}
		out, want = append(out, parts), append(want, f)
	}
	f := frame(9, 22+link.MaxSlices)
	most := [][]byte{withHeader(f[:23])}
	for i := 23; len(most) < link.MaxSlices; i++ {
		most = append(most, f[i:i+1])
	}
	f = bytes.Join(most, nil)[link.HeaderLen:]
	out, want = append(out, most), append(want, f)
	before := r.dev.Counters()
	accepted := make([]bool, len(out))
	n, err := r.dev.WriteVectors(out, accepted)
	r.ok(err)
	if n != len(out) || slices.Contains(accepted, false) {
		t.Errorf("wrote %d %v, want %d", n, accepted, len(out))
	}
	r.wantFrames(r.recv(len(want)), want...)
	if got := r.dev.Counters().Written - before.Written; got != uint64(len(out)) {
		t.Errorf("Written rose by %d, want %d", got, len(out))
	}
}

func refusesVectors(t *testing.T, r *rig) {
	good := withHeader(frame(0, 60))
	accepted := []bool{true, true, true, true, true, true}
	n, err := r.dev.WriteVectors([][][]byte{{good}, {good[:10], good[10:]}}, accepted)
	if n != 0 || err != nil || accepted[0] || accepted[1] || !accepted[2] {
		t.Errorf("wrote %d %v, %v to an interface that is down; want none", n, accepted, err)
	}
	r.running()
	tooMany := make([][]byte, link.MaxSlices+1)
	tooMany[0] = good
	in := [][][]byte{{}, {nil, {}}, {good[:link.HeaderLen], good[:13]}, {good[:40], good[40:]}, tooMany}
	n, err = r.dev.WriteVectors(in, accepted)
	if want := []bool{false, false, false, true, false, true}; n != 1 || err != nil || !slices.Equal(accepted, want) {
		t.Errorf("wrote %d %v, %v; want only the fourth of five", n, accepted, err)
	}
	r.wantFrames(r.recv(1), frame(0, 60))
	if d := r.dev.Counters().Drops; d != (link.Drops{WriteInvalid: 4, WriteDown: 2}) {
		t.Errorf("drops = %+v, want 4 invalid and 2 down", d)
	}
}

// writesNone checks WriteVectors on a device that is closed or gone.
func (r *rig) writesNone(want error) {
	r.t.Helper()
	f := withHeader(frame(0, 60))
	accepted := []bool{true, true}
	n, err := r.dev.WriteVectors([][][]byte{{f}, {f}}, accepted)
	r.wantErr("WriteVectors", err, want)
	if n != 0 || accepted[0] || accepted[1] {
		r.t.Errorf("wrote %d %v, want none", n, accepted)
	}
}

func offloadsStepDown(t *testing.T, r *rig) {
	const csum, fragmentation, ecn = link.OffloadCsum, 1 << 4, 1 << 3
	for _, c := range []struct{ want, got link.Offloads }{
		{0, 0},
		{csum, csum},
		{link.OffloadTSO, 0}, // needs csum
		{csum | link.OffloadTSO4, csum | link.OffloadTSO4},
		{csum | link.OffloadTSO | ecn | fragmentation, csum | link.OffloadTSO},
		{csum | link.OffloadUSO4, csum}, // needs USO6
		{0, 0},
	} {
		if got, err := r.dev.SetOffloads(c.want); got != c.got || err != nil {
			t.Errorf("SetOffloads(%v) = %v, %v; want %v", c.want, got, err, c.got)
		}
	}
	got, err := r.dev.SetOffloads(link.AllOffloads)
	if err != nil || got|link.OffloadUSO != link.AllOffloads || got != got.Possible() {
		t.Errorf("SetOffloads(all) = %v, %v; want all, or all but UDP", got, err)
	}
	r.inspect() // nothing was changed by others
}

// large returns a frame of TCP over IPv4 and the header that requests its segmentation, size
// bytes together.
func large(size int) (header [link.HeaderLen]byte, frame []byte) {
	const headers, mss = 14 + 20 + 20, 1400
	header[0], header[1] = 1, 1 // NEEDS_CSUM, GSO_TCPV4
	for at, v := range map[int]uint16{2: headers, 4: mss, 6: 34, 8: 16} {
		binary.NativeEndian.PutUint16(header[at:], v)
	}
	f := make([]byte, size-link.HeaderLen)
	copy(f, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x00")
	copy(f[14:], "\x45\x00\x00\x00\x00\x01\x40\x00\x40\x06\x00\x00\xc6\x33\x64\x01\xc6\x33\x64\x02")
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	copy(f[34:], "\x10\x00\x20\x00\x00\x00\x00\x01\x00\x00\x00\x00\x50\x10\x10\x00")
	for i := headers; i < len(f); i++ {
		f[i] = byte(i)
	}
	return header, f
}

// largeFramesPass sends the largest frame while the offloads are on, and again after they were
// turned off: then the kernel cuts the frame, and the fake loses it.
func largeFramesPass(t *testing.T, r *rig) {
	r.running()
	got, err := r.dev.SetOffloads(link.AllOffloads)
	r.ok(err)
	if got&link.OffloadTSO4 == 0 {
		t.Fatalf("offloads %v", got)
	}
	header, f := large(link.MaxFrame)
	for range 2 {
		r.host.SendOffloaded(header, f)
		r.wantLarge(header, f)
		r.inspect()
	}
	got, err = r.dev.SetOffloads(0)
	if got != 0 || err != nil {
		t.Fatalf("SetOffloads(0) = %v, %v", got, err)
	}
	r.host.SendOffloaded(header, f)
	r.host.Send(frame(1, 60))
	for {
		for _, b := range r.readSome() {
			if len(b) > link.HeaderLen+1514 || !bytes.Equal(b[:link.HeaderLen], make([]byte, link.HeaderLen)) {
				t.Errorf("without offloads: a frame of %d bytes with the header % x", len(b), b[:link.HeaderLen])
			} else if isTest(b) {
				return
			}
		}
	}
}

// wantLarge reads until a large frame arrives. The header's hint of the length of the
// headers may differ.
func (r *rig) wantLarge(header [link.HeaderLen]byte, want []byte) {
	r.t.Helper()
	for {
		for _, got := range r.readSome() {
			if len(got) < 2000 {
				continue // the host's own traffic
			}
			same := bytes.Equal(got[:2], header[:2]) &&
				bytes.Equal(got[4:link.HeaderLen], header[4:]) &&
				bytes.Equal(got[link.HeaderLen:], want)
			if !same {
				r.t.Errorf("a frame of %d bytes with the header % x; want %d bytes, % x",
					len(got), got[:link.HeaderLen], link.HeaderLen+len(want), header)
			}
			return
		}
	}
}

// readSome returns the next frames.
func (r *rig) readSome() [][]byte {
	r.t.Helper()
	wake := time.AfterFunc(patience, r.dev.Wake)
	defer wake.Stop()
	bufs, sizes := buffers(8, link.MaxFrame)
	n, err := r.dev.ReadBatch(bufs, sizes)
	r.ok(err)
	if n == 0 {
		r.t.Fatal("no frame arrives")
	}
	for i := range n {
		bufs[i] = bufs[i][:sizes[i]]
	}
	return bufs[:n]
}

// inspectKeepsOffloads: an inspection turns off offloads that another process has added, and
// leaves the device's own.
func inspectKeepsOffloads(t *testing.T, r *rig) {
	r.running()
	const own = link.OffloadCsum | link.OffloadTSO4
	got, err := r.dev.SetOffloads(own)
	if got != own || err != nil {
		t.Fatalf("SetOffloads = %v, %v; want %v", got, err, own)
	}
	q := r.host.Attach()
	q.SetOffloads(own | link.OffloadTSO6)
	r.inspect(link.PropertyOffloads)
	r.inspect()
	q.SetOffloads(0)
	r.inspect() // an offload that is off costs only speed, and is set again without a report
	q.Detach()
	header, f := large(30000)
	r.host.SendOffloaded(header, f)
	r.wantLarge(header, f)
}
