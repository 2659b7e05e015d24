"""A grpc.aio server that parses a SendMessageRequest and builds the reply that the broker would, and nothing else."""

from __future__ import annotations

import grpc
import grpc.aio
import uvloop

from aerobee_proto import v2


class EmptyService(v2.MessagingServiceServicer):
    """Stores nothing."""

    async def SendMessage(
        self,
        request: v2.SendMessageRequest,
        context: grpc.aio.ServicerContext[v2.SendMessageRequest, v2.SendMessageResponse],
    ) -> v2.SendMessageResponse:
        response = v2.SendMessageResponse(status=v2.Status(code=v2.Code.OK, message="OK"))
        for message in request.messages:
            message_id = message.system_properties.message_id
            response.entries.add(
                status=v2.Status(code=v2.Code.OK, message="OK"),
                message_id=message_id,
                transaction_id=message_id,
                offset=1,
            )
        return response


async def main() -> None:
    server = grpc.aio.server()
    v2.add_MessagingServiceServicer_to_server(EmptyService(), server)  # type: ignore[abstract]  # one RPC is enough
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready grpc=127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
