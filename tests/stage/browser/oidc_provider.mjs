// The certified oidc-provider, for tests/coordinator_side/web/test_oidc.py: whoever signs in as "role:study" has that role and study.
// Arguments: folder with node_modules, address of the coordinator's callback. Prints its port.
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [folder, redirect] = process.argv.slice(2);
const found = createRequire(`${folder}/x.js`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(found));
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const client = (id) => ({
    client_id: id,
    client_secret: `${id}-secret`,
    redirect_uris: [redirect],
    response_types: ["code"],
    grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
  });
  const provider = new Provider(issuer, {
    clients: [client("tributary"), client("another")],
    claims: { openid: ["sub", "tributary_role", "tributary_studies"], profile: ["preferred_username"] },
    conformIdTokenClaims: false,
    features: { deviceFlow: { enabled: true }, introspection: { enabled: true }, revocation: { enabled: true } },
    issueRefreshToken: async () => true,
    cookies: { keys: ["of a test"] },
    findAccount: (context, id) => ({
      accountId: id,
      claims: () => ({
        sub: id,
        preferred_username: id.replace(":", "."),
        tributary_role: id.split(":")[0],
        tributary_studies: [id.split(":")[1]],
      }),
    }),
  });
  server.on("request", provider.callback());
  console.log(server.address().port);
});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
