package sm

import (
	"os/exec"
	"strings"

	"ipoibd/hca"
)

// smKey is the key without which OpenSM conceals the members of groups. It is OpenSM's default.
const smKey = "1"

// Membership returns the record of a host's membership in a group as saquery prints it, an independent client of the SA:
// values such as "0x1" by the names of fields, such as JoinState. It is empty if the host is no member.
func (s *Subnet) Membership(i int, mgid hca.GID) map[string]string {
	s.tb.Helper()
	cmd := exec.Command("saquery", "--smkey", smKey, "MCMR", "--mgid", mgid.String(), "--gid", s.GID(i).String())
	cmd.Env = onSim(toolPort)
	p := s.run(cmd)
	<-p.exited
	if !cmd.ProcessState.Success() {
		s.tb.Fatalf("saquery: %v\n%s", cmd.ProcessState, p.output.Bytes())
	}
	record := map[string]string{}
	for line := range strings.Lines(p.output.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ".."); ok {
			record[name] = strings.TrimLeft(value, ".")
		}
	}
	return record
}
