package e2e

import (
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// The flood of one sender, and what it may cost. The machine is shared, so the limits are ten times, and four
// times, the goals.
const (
	senderFlood    = 20_000 // messages/s
	senderLasts    = 5 * time.Second
	goalResolution = 2.0  // times that without a flood
	goalSenderCPU  = 25.0 // per cent of a core
)

// A sender that floods a host with ARP from ever new queue pairs of one GID slows down neither the resolution
// of the host by others nor their traffic, and takes little of its processor.
func TestAbuseFloodOfOneSender(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	resolve := func(during time.Duration) (median time.Duration, lost int) {
		var took []time.Duration
		for start := time.Now(); time.Since(start) < during; time.Sleep(20 * time.Millisecond) {
			s.b.Run("ip", "neigh", "flush", "dev", ifName)
			began := time.Now()
			if !s.b.reaches(s.a) {
				lost++
				continue
			}
			took = append(took, time.Since(began))
		}
		if len(took) == 0 {
			t.Fatal("the host is not resolved at all")
		}
		slices.Sort(took)
		return took[len(took)/2], lost
	}
	quiet, _ := resolve(time.Second)

	stop, ended, sent := make(chan struct{}), make(chan struct{}), 0
	to, dst := s.a.qp().QPN, s.a.underlay()
	go func() {
		defer close(ended)
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			for due := int(time.Since(start).Seconds() * senderFlood); sent < due; sent++ {
				qpn := hca.QPN(0x100000 + sent)
				body := ipoib.ARP{Op: ipoib.ARPRequest, SHA: endpoint(qpn, s.mallory.addr), SPA: addr("10.44.0.77"), TPA: addr("10.44.0.77")}
				p := rightPacket(to, message(ipoib.EtherTypeARP, body.Append(nil)))
				p.SrcQPN = qpn
				s.mallory.send(dst, p)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	start, before := time.Now(), s.a.cpu()
	median, lost := resolve(senderLasts)
	percent := 100 * (s.a.cpu() - before).Seconds() / time.Since(start).Seconds()
	close(stop)
	<-ended
	dropped := s.a.iface().Counters["rx_drop_slow_path_limit"]
	t.Logf("%d messages in %v, %d of them dropped: %.0f %% of a core (goal: %v %%); a resolution takes %v, %v without (goal: %v times), %d failed",
		sent, time.Since(start).Round(time.Millisecond), dropped, percent, goalSenderCPU, median, quiet, goalResolution, lost)
	if percent > 4*goalSenderCPU || median > time.Duration(10*goalResolution*float64(quiet)) {
		t.Error("that exceeds the limits")
	}
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	s.end(floodLoss)
}
