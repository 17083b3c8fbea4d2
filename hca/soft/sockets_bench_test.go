package soft_test

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// BenchmarkPostSockets sends 60,000 bytes of payload over a veth pair, as one large send and
// as single sends whose headers are complete, to a socket that is always full.
func BenchmarkPostSockets(b *testing.B) {
	nsA, nsB := nstest.Pair(b, 9000)
	nsB.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			b.Cleanup(func() { _ = unix.Close(fd) })
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: udp.Port})
		}
		if err != nil {
			b.Fatal(err)
		}
	})
	var dev *soft.Device
	nsA.Do(func() {
		tr, err := udp.Open(udp.Config{Netdev: nstest.Dev})
		if err == nil {
			dev, err = soft.Open(soft.Config{Name: "soft", Transport: tr})
		}
		if err != nil {
			b.Fatal(err)
		}
	})
	p := newPoster(b, dev)
	for _, mss := range []int{1388, 1988, 4036} {
		n := 60000 / mss
		large, singles := p.wrs(n, mss)
		for _, c := range []struct {
			name string
			wrs  []hca.SendWR
		}{{"large", large}, {"single", singles}} {
			b.Run(fmt.Sprintf("%d/%s", mss, c.name), func(b *testing.B) {
				b.SetBytes(int64(n * mss))
				for b.Loop() {
					p.carry(c.wrs)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/segment")
			})
		}
	}
}

// poster posts sends on a device to host 1.
type poster struct {
	*testing.B
	mr  hca.MR
	cq  hca.CQ
	qp  hca.QP
	to  hca.UDDest
	wcs [hca.Batch]hca.WC
}

func newPoster(b *testing.B, dev *soft.Device) *poster {
	p := &poster{B: b}
	made := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	pd, err := dev.AllocPD()
	made(err)
	p.mr, err = pd.AllocMR(1<<16+8192, 0)
	made(err)
	p.cq, err = dev.CreateCQ(hca.CQSpec{Entries: 4 * hca.Batch})
	made(err)
	p.qp, err = pd.CreateQP(hca.QPSpec{SendWRs: 4 * hca.Batch, RecvWRs: 1, SendSGEs: 2, RecvSGEs: 1}, p.cq, p.cq)
	made(err)
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		made(p.qp.Modify(hca.QPAttr{State: s + 1, Port: 1}, hca.AttrState|hca.UDTransition(s, s+1).Required))
	}
	port, err := dev.QueryPort(1)
	made(err)
	spec := hca.AHSpec{Port: 1, Global: true}
	for i, g := range port.GIDs {
		if g.GID.Addr().Is4() {
			spec.SGIDIndex = i
		}
	}
	spec.DGID = hca.GIDFromAddr(netip.MustParseAddr(nstest.IPv4(1)))
	ah, err := pd.CreateAH(spec)
	made(err)
	p.to = hca.UDDest{AH: ah, QPN: 5, QKey: 7}
	return p
}

// wrs returns a large send of n segments, and n single sends of the same size.
func (p *poster) wrs(n, mss int) (large, singles []hca.SendWR) {
	header := hcatest.TCPHeader()
	large = []hca.SendWR{{
		SGList: []hca.SGE{p.mr.SGE(0, n*mss)}, UD: p.to, Flags: hca.SendSignaled, LSO: hca.LSO{Header: header, MSS: mss},
	}}
	for i := range n {
		singles = append(singles, hca.SendWR{SGList: []hca.SGE{p.mr.SGE(i*mss, mss+len(header))}, UD: p.to})
	}
	singles[n-1].Flags = hca.SendSignaled
	return large, singles
}

// carry posts sends and polls until the last one has completed.
func (p *poster) carry(wrs []hca.SendWR) {
	if n, err := p.qp.PostSend(wrs); n != len(wrs) {
		p.Fatal(err)
	}
	for {
		n, err := p.cq.Poll(p.wcs[:])
		if err != nil {
			p.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
}
