package sm

import "testing"

func TestTopology(t *testing.T) {
	const want = `switchguid=0x0002c903000000ff
Switch	2 "S-0002c903000000ff"		# "switch" base port 0 lid 0 lmc 0
[1]	"H-0002c90300001000"[1](2c90300001001) 		# "node1" lid 0 4xEDR
[2]	"H-0002c90300002000"[1](2c90300002001) 		# "node2" lid 0 4xEDR

caguid=0x0002c90300001000
Ca	1 "H-0002c90300001000"		# "node1"
[1](2c90300001001) 	"S-0002c903000000ff"[1]		# lid 0 lmc 0 "switch" lid 0 4xEDR

caguid=0x0002c90300002000
Ca	1 "H-0002c90300002000"		# "node2"
[1](2c90300002001) 	"S-0002c903000000ff"[2]		# lid 0 lmc 0 "switch" lid 0 4xEDR
`
	if got := topology(2); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
