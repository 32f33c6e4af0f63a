package launch

import (
	"context"
	"log/slog"

	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

type pool struct{}

func openPool(AgentConfig, uint64, session.Secret, *slog.Logger) (*pool, error) { return &pool{}, nil }
func (*pool) close()                                   {}
func (*pool) addresses() []string                      { return nil }
func (*pool) join(context.Context, *pb.Roster)         {}
func (*pool) opinions() <-chan *pb.MemberEvent         { return nil }
