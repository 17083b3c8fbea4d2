package infiniband

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// suiteLimit bounds the conformance suite: ten times its duration on an idle machine.
const suiteLimit = 5 * time.Minute

// suiteGroup is the group of the suite's multicast tests. The suite does not join it at the SA, so the test does, for
// both ports.
var suiteGroup = sm.Group{
	MGID: hca.GIDFromAddr(netip.MustParseAddr("ff12:401b:ffff::4:1")), PKey: 0xffff, QKey: 0xb1b, MTU: 4, Rate: 7, Scope: 2,
}

// refusedAtPost is why rdmavt fails some tests: it checks the memory of a send when the send is posted, and refuses it
// with EINVAL. Other devices accept the request, and complete it with an error. The contract of hca permits both, but
// the tests of the completion cannot run.
const refusedAtPost = "invalid argument or state: invalid argument"

// rdmavtsWay are the tests of the suite that rdmavt fails, and those that contain them, with what they print. The rest
// must pass.
var rdmavtsWay = map[string]string{
	"TestConformance/InfiniBand/error/send_protection":  refusedAtPost,
	"TestConformance/InfiniBand/error/send_error_state": refusedAtPost,
	"TestConformance/InfiniBand/lso/fails_midway":       "posted 2 of 3 sends", // the refused segment fails the large send, and the third request
	"TestConformance/InfiniBand/lso/protection":         refusedAtPost,
	"TestConformance/InfiniBand":                        "--- FAIL",
	"TestConformance":                                   "--- FAIL",
}

// The backend for real HCAs passes the conformance suite on two InfiniBand ports of one guest, except for the tests
// that rdmavt fails on any HCA.
func TestConformance(t *testing.T) {
	guest.Require(t)
	binary := guest.TestBinary(t, "ipoibd/hca/verbs", "-tags=vm")
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		s := sm.Start(t, sm.Spec{Hosts: 2})
		g := boot(t, s, member{series: series, hosts: []int{0, 1}})[0]
		s.Join(0, suiteGroup)
		group := s.Join(1, suiteGroup)
		s.WaitMembers(group.MLID, 0, 1)
		for i := range 2 {
			waitActive(t, g, i)
		}
		env := []string{
			"TEST_IPOIBD_VERBS_A=ibwire0", "TEST_IPOIBD_VERBS_B=ibwire1",
			"TEST_IPOIBD_VERBS_MGID=" + group.MGID.String(), fmt.Sprintf("TEST_IPOIBD_VERBS_MLID=%d", group.MLID),
		}
		g.RunTestsExcept(t, binary, suiteLimit, env, rdmavtsWay, "-test.run=^TestConformance$")
		requireQuietKernel(t, g)
	})
}
